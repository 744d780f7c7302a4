"""opinfo — PyTorch's OpInfo database against the library: for tools/checks/opinfo.py."""
