// SPDX-License-Identifier: GPL-2.0-only

//! Consecutive VPIDs that a module keeps for itself: neither processes nor other modules get them.

use super::Table;
use kernel::{prelude::*, sync::Arc};
use wire::ids::Vpid;

/// Reserved VPIDs, of one unit or of both. Drop, in any context, ends the reservation; ports that are open with
/// VPIDs of it stay open.
pub struct VpidRange {
    tables: [Option<Arc<Table>>; 2],
    first: Vpid,
    count: u16,
}

impl VpidRange {
    /// Reserves `count` VPIDs from `first` on, or the lowest that are free in a row, in all tables. Any
    /// context.
    ///
    /// # Errors
    ///
    /// `EINVAL`: none, or not all of 0…250. `EBUSY`: one from `first` on is taken or reserved. `ENOSPC`: no such
    /// row.
    pub(crate) fn new(
        tables: [Option<&Arc<Table>>; 2],
        first: Option<Vpid>,
        count: u16,
    ) -> Result<Self> {
        let end = Vpid::USER_END.get();
        let last = end.checked_sub(count).ok_or(EINVAL)?;
        let wanted = first.map(Vpid::get);
        if count == 0 || wanted.is_some_and(|first| first > last) {
            return Err(EINVAL);
        }
        for candidate in wanted.map_or(0..=last, |first| first..=first) {
            let first = Vpid::new(candidate).ok_or(EINVAL)?;
            let taken = tables.map(|table| match table {
                Some(table) if table.reserve(candidate..candidate + count) => {
                    Ok(Some(table.clone()))
                }
                Some(_) => Err(()),
                None => Ok(None),
            });
            let complete = taken.iter().all(Result::is_ok);
            let this = Self {
                tables: taken.map(|table| table.unwrap_or(None)),
                first,
                count,
            };
            if complete {
                return Ok(this);
            }
        }
        Err(if first.is_some() { EBUSY } else { ENOSPC })
    }

    /// The first one.
    pub fn first(&self) -> Vpid {
        self.first
    }

    /// How many there are.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Number `index` of it, if it is reserved in `table`.
    pub(crate) fn vpid(&self, table: &Arc<Table>, index: u16) -> Option<Vpid> {
        let has = |own: &Arc<Table>| Arc::ptr_eq(own, table);
        (index < self.count && self.tables.iter().flatten().any(has))
            .then(|| Vpid::new(self.first.get() + index))?
    }
}

impl Drop for VpidRange {
    fn drop(&mut self) {
        let first = self.first.get();
        for table in self.tables.iter().flatten() {
            table.unreserve(first..first + self.count);
        }
    }
}

#[kunit_tests(extoll_vpid_range)]
mod tests {
    use super::*;
    use crate::{stats::PortStats, vpid::Want};
    use wire::ids::Unit;

    fn take(table: &Table, want: Want) -> Result<Vpid> {
        table.allocate(want, Arc::new(PortStats::of(None), GFP_KERNEL)?, |_| true)
    }

    #[test]
    fn ranges_are_kept_from_others() -> Result {
        let (velo, rma) = (Table::new(Unit::Velo)?, Table::new(Unit::Rma)?);
        let vpid = |n| Vpid::new(n).ok_or(EINVAL);
        // In the way of the first row that would do for one unit.
        assert_eq!(take(&rma, Want::This(vpid(2)?))?, vpid(2)?);
        let both = [Some(&velo), Some(&rma)];
        let range = VpidRange::new(both, None, 4)?;
        assert_eq!((range.first(), range.count()), (vpid(3)?, 4));
        assert_eq!(range.vpid(&velo, 3), Some(vpid(6)?));
        assert_eq!(range.vpid(&velo, 4), None);
        assert_eq!(range.vpid(&Table::new(Unit::Velo)?, 0), None);
        let other = VpidRange::new(both, Some(vpid(6)?), 2);
        assert_eq!(other.err(), Some(EBUSY));
        assert_eq!(VpidRange::new(both, None, 0).err(), Some(EINVAL));
        assert_eq!(
            VpidRange::new(both, Some(vpid(250)?), 2).err(),
            Some(EINVAL)
        );
        assert_eq!(VpidRange::new(both, None, 248).err(), Some(ENOSPC));
        // Nobody else gets one of them, whatever he asks for.
        assert_eq!(take(&velo, Want::This(vpid(4)?)).err(), Some(EBUSY));
        assert_eq!(take(&velo, Want::Reserved(vpid(4)?))?, vpid(4)?);
        assert_eq!(take(&velo, Want::Reserved(vpid(7)?)).err(), Some(EBUSY));
        for n in (0..3).chain(7..251) {
            assert_eq!(take(&velo, Want::Any)?, vpid(n)?);
        }
        assert_eq!(take(&velo, Want::Any).err(), Some(ENOSPC));
        drop(range);
        assert_eq!(take(&velo, Want::Any)?, vpid(3)?);
        Ok(())
    }
}
