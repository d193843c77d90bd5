// Linked against one folder's whole archive and its allowed dependencies only: an upward call
// is an undefined symbol here.
int main() { return 0; }
