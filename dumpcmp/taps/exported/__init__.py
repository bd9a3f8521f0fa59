"""Programs of ``torch.export`` as models that are captured: each node of their graph is a call."""
