"""The messages of the APIs 10000 to 10003 (connect groups), as classes in the form of kio's generated ones.

The definitions are `docs/protocol/messages`; they also say what each field means. Each class has the name of its struct
there, and each field the name in snake case. Unlike in kio's classes, error codes are int16, because kio's enum of them
is closed, and durations are int milliseconds.

A tagged field whose struct may be null has a separate class: `structs.NullableConfigured` contains a `Configured` or
None, and None is the default. Kafka writes a marker before such a struct (KIP-893); kio 0.6.5 reads this marker, but
does not write it. With these classes, of one nullable field each, it does both, and the bytes are Kafka's.
"""
