// SPDX-License-Identifier: GPL-2.0-only

//! Tests that need a kernel, but no device. Host tests (`protocol`, `wire`) and scenarios cover the
//! other parts of the unit.

use kernel::prelude::*;

#[kunit_tests(extoll_atu)]
mod units {
    use super::super::TableAccount;
    use super::*;
    use protocol::nic::{nla::NlaRange, table_use::SPAN};

    #[test]
    fn an_account_keeps_a_user_in_his_tables() -> Result {
        let account = TableAccount::new(8, 2)?;
        let page = |table: u64| NlaRange {
            first: table * SPAN + 1,
            pages: 1,
        };
        assert!(account.is_idle());
        for table in [0, 5] {
            assert!(account.may_add(page(table)));
            account.add(page(table));
        }
        assert!(!account.may_add(page(3)));
        // An address range is found only in tables that the user already occupies.
        let found = account.find(|window| (window.first != 0).then_some(window.first / SPAN));
        assert_eq!(found, Some(5));
        account.remove(page(0));
        assert!(account.may_add(page(3)));
        account.remove(page(5));
        assert!(account.is_idle());
        Ok(())
    }
}
