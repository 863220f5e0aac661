"""Fair federated learning that people can use."""
