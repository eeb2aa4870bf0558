"""What it takes to run and show the programs; nothing here is part of the distribution."""
