// Here so that functions may be declared without bodies.
