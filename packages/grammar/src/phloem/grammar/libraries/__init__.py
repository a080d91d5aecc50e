"""What the backends over other libraries share: checks before, and bookkeeping around them."""
