"""The static contract of any packed data set, ours or another's, and of one live batch."""
