#include <tutti/tutti.h>

int main() {}
