"""Models to and from other programs. Every foreign architecture is a table of names; none has model code of its own."""
