"""`make compose-test`: the compose file, brought up and taken down on this machine."""
