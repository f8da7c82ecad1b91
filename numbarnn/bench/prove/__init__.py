"""`numbarnn prove`: everything that a short time with a GPU should answer, the most valuable first.

parts       what is asked: a table of parts, each with its questions and its limits
conduct     asks: child processes answer one question after the other, and are killed when they take too long
child       such a process
results     the file of a part's answers, written after each of them, from which a later run goes on
summary     what was answered, as text
plain, timed, asked_cudnn, phases, silent, tools
            the questions and their answers, made of what `check`, `bench` and `trace` have
"""
