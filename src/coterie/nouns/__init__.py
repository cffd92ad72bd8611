"""The words that everything else is written in: ids, jobs, states, the error tree."""
