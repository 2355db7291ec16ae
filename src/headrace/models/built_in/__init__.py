"""The architectures that come with headrace, one file each."""
