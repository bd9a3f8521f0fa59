"""pytorch#133512."""
