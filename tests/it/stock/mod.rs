//! Step 4: the scripts and who calls them.

mod batches;

mod model;

mod scripts;
