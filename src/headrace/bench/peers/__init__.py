"""The alternatives, one small file each, as their own documentation would write it; `headrace bench` runs them.

Each runs in a process of its own (child.py), so that its memory and processor time are its own. headrace is
one of them, used as anyone would use it.
"""
