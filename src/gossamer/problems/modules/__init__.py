"""Problems made of a `torch.nn.Module`."""
