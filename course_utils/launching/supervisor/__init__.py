"""The process that starts the ranks of a launch, watches them and the kernel, ends everything, and cleans up."""
