"""What whoever meets a directory asks: what is it, is it whole, how is it mended, how does it get elsewhere?

Law: looking locks, makes and changes nothing; what changes something says first what it would do.
"""
