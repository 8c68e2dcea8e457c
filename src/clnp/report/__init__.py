"""What a run, a series or a comparison has come to, as one page and figures for a paper."""
