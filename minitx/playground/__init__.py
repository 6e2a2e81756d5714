"""The page of `minitx play`: one text of a trained model, token by token."""
