//! Tables of states and events.

use protocol::base::flow::Flow;
use protocol::eth::rendezvous::{FetchEvent, FetchState, FlightState};

#[test]
fn ended_is_the_end() {
    for e in FlightState::EVENTS {
        assert_eq!(FlightState::Ended.next(*e), None, "{e}");
    }
    for e in FetchState::EVENTS {
        assert_eq!(FetchState::Ended.next(*e), None, "{e}");
    }
    assert_eq!(FlightState::GivenUp.to_string(), "GivenUp");
    assert_eq!(FetchEvent::PostScratch.to_string(), "PostScratch");
}
