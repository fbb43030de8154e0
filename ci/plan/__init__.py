"""What a run of CI builds and tests: an event becomes a plan, by one pure function.

event -> question (`events`, `inputs`, `decisions`) -> families and machines (`families`) -> jobs (`plan`) ->
where ROCm comes from (`rocm`, `runs`, `artifacts`) -> what people and jobs read (`outputs`); by `data`.
"""
