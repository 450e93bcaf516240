"""Commands on consumer groups: what they read, and where they go on."""
