"""The part of the operating system that an environment stands on, and its interpreter, cut from the live machine."""
