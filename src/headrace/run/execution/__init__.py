"""How a run computes its steps: the choice by measurement, what is remembered of it, and the rates it is judged by."""
