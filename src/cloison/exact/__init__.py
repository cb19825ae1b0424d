"""The cheapest exact way to run packed blocks on a given model, found by experiment: `adapt`."""
