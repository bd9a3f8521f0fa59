"""The compiled mode: values out of the kernels that Inductor writes."""
