"""`coterie groups`: lists, describes and changes groups, over Kafka's protocol."""
