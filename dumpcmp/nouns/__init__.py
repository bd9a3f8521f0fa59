"""The nouns: frozen values that stages hand to each other, with little behaviour of their own."""
