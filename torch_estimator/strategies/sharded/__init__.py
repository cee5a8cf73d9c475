"""Steps of several processes, each of which holds a part of every parameter."""
