"""Jobs on Kubernetes: the objects of a job, the cluster that has them, and the pods that they become."""
