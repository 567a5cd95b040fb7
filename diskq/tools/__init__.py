"""Tools that identify, verify, repair, salvage, convert and watch stores of any kind.

Law: looking takes no lock, and makes and changes nothing; a tool that changes something first shows its plan.
"""
