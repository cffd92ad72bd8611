"""`coterie broker`: the embedded broker as a process, its data folder and its users."""
