"""For those who give the course: reports of learners' notebooks, run sheets, a look before class.

What learners hand in is run apart from all that matters (`sandbox`, which starts `sandbox_init`):
first the whole notebook, of which only the answers are kept (`run_notebook`, `capture_answers`),
then the answers alone, by checks that they cannot reach (`grading`). `submissions` finds the
notebooks, `report` puts it all together, `tables` writes it. `sheet`, `preflight`, `demo` (with
`replay`) and `cleanup` are the other commands; `commands` adds them all to `lockstep`.
"""
