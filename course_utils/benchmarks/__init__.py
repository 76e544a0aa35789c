"""What this computer can do, measured on ranks: its rates for the cost model, and a page about its GPUs."""
