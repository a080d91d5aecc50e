"""What an operator sees of a server: metrics, traces and logs.

Start at `watch`: what is noted of one HTTP request while it is answered, and who hears of it at the
end. Nothing in here may fail a request, or hold one up.
"""
