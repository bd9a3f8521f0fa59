"""pytorch/pytorch#133512."""
