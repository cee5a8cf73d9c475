"""Baby weight: a wide-and-deep regressor with a metric of its own, a forwarded key and an exported embedding."""
