"""What an audit is given, opened, checked and joined with the truth. Attacks read views of it (views/), never it."""
