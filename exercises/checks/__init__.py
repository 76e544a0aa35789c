"""How an answer to an exercise is judged. `lesson_04/` holds the judge of lesson 04, what it runs on ranks, its cases
and its hints.

`judging` is shared by the judges, which run in the notebook's process. `rank_side` is shared by the programs on ranks,
and `rank_program` starts those. This folder is imported under the name `exercise_checks`.
"""
