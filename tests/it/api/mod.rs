//! Steps 1 to 3 and 5, over HTTP.

mod bad_input;

mod edge;

mod rush;

mod status;
