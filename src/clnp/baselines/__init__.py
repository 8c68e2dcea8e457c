"""The methods that neural pruning is compared with: one file each, its formula at the top."""
