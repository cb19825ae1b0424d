"""Blocks to batches: order, epochs, ranks, state. What every rank gets is a pure function of (seed, epoch, step, rank).

`order` shuffles blocks, `schedule` deals them to steps and ranks, `balance` evens out what ranks have to do, `reading` fetches
blocks, `loader` ties them together, and `torch_data` serves trainers that bring a loader of their own.
"""
