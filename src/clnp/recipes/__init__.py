"""An experiment as a TOML file; those that come with the package are in `library`."""
