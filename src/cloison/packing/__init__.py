"""The job: samples to blocks, in memory (`memory`) and from sources to disk (`job`), on engines that run pure functions."""
