"""How an answer to an exercise is judged. `lesson_04/` holds the judge of lesson 04, what it runs on ranks, its cases
and its hints.

`judging` is shared by the judges, which run in the notebook's process. `rank_side` is shared by the programs on ranks,
and so is `files`, which watches what they write; `rank_program` starts them. This folder is imported under the name
`exercise_checks`.
"""
