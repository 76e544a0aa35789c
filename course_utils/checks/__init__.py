"""The exercises of each lesson: `lesson_NN` judges an answer from the notebook's side, `ranks_NN` runs it on ranks beside a twin."""
