"""What sites share: who may do what, forms, answers to errors, files, and the templates around a page.

``access.py`` has the rules of access, and ``site.py`` the rest of a site that does not depend on what it shows.
``http.py`` reads bodies and sends answers without a framework, ``connection.py`` has the connections beneath, and
``errors.py`` has errors that are answers.
"""
