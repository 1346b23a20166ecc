"""The private names of other libraries that torchgraft depends on, and nothing else."""
