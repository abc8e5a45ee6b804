//! What holds with PostgreSQL: of the server and the network that the tests bring along, and of the service on them.

mod cluster;
mod fleet;
mod migrations;
mod outage;
mod pool;
mod proxy;
mod settle;
